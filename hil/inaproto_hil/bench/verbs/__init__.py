"""``inaproto bench verbs``: what a host daemon on a RoCE card does for a message, over a device that does
nothing."""
