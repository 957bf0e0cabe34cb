"""Models of distinct launch kinds, compiled once per test session and shared by the tests."""
