"""Whether two accelerators do the same, frame by frame and in any weather.

One of them, the golden one, is the software core. ``device`` says what an accelerator must offer to be
compared, ``traffic`` makes seeded campaigns of frames, ``compare`` feeds two devices and reports the first
difference.
"""
