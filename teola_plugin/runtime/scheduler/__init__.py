"""Scheduling of one engine: work items, the queue, policies, replicas, fairness between tenants, recovery."""
