"""``inaproto bench controller``: the control plane under many hosts and jobs."""
