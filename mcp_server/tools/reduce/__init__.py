"""Small reproductions: of a failing program, and of one launch."""
