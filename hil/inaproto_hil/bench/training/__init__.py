"""``inaproto bench training``: steps of an unchanged PyTorch script, by gloo and by inaproto."""
