"""PARING: the workers and the parameter server of a job placed, and its gradients routed, in one step."""
