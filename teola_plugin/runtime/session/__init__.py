"""One call of an optimized pipeline: its plan run ahead, and the slots where the framework takes the results."""
