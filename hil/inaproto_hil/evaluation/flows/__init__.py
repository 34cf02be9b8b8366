"""Flow-level simulation of networks: flows share links max-min fairly, as TCP does by and large, and end.

MLNet's section 4 is evaluated on it (``inaproto reproduce mlnet``). Nothing here knows of packets: a flow is
a volume on a path, links have capacities, and time passes from one end of a flow to the next.
"""
