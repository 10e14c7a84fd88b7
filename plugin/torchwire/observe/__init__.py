"""What operators see of a running worker: metrics, status, calls under way, traces.

Nothing here runs unless somebody asks: the agent counts by itself (backend/call/), and this reads it.
"""
