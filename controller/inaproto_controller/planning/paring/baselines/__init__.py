"""What PARING is compared with (section V-B): placements and routes that do not decide on both at once.

All are fed the same network and task as PARING's planners, and place alike: as DeepSys does. Whatever is a
tree of the task is a ``PlacedTree``, judged by the same ``measure``.
"""
