"""sharp: all-reduces by NVIDIA's SHARP through libsharp_coll, loaded by ctypes when it is used.

Layout and order of calls are checked against the documented interface and a test double. It has never run on
SHARP hardware; docs/sharp.md says what that means.
"""
