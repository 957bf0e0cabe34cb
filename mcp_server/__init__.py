"""aoti-debug: diagnoses AOTInductor failures by running the workload."""

__version__ = "0.1.0"
