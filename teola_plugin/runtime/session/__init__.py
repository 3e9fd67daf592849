"""One call of an optimized pipeline: the plan run ahead, and the slots where the framework takes the results."""
