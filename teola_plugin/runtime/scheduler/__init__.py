"""Scheduling of an engine: work items, the queue, policies, replicas, fairness between tenants, recovery."""
