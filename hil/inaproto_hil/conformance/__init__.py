"""Whether an accelerator keeps the rules, whatever it is made of: scripted packets, and what must leave.

Each rule (:mod:`inaproto_hil.conformance.rules`) says which packets come in and, byte for byte, what has to
leave, by formulas of its own. The first rule that does not hold is told with the frame that is wrong.
"""
