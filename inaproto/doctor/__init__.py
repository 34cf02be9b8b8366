"""``inaproto doctor``: a checklist of a machine that runs hosts or a switch (docs/operating.md).

One check is one small function from what is found to a verdict. Adapters add theirs under the entry point
group ``inaproto.checks``.
"""
