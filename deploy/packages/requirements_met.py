"""Says which requirements of installed packages are not met: what pip check says, where there is no pip."""

import re
from importlib.metadata import distributions

there = {re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower() for found in distributions()}
missing = [
    f"{found.metadata['Name']} wants {needed}"
    for found in distributions()
    for needed in found.requires or ()
    if ";" not in needed and re.sub(r"[-_.]+", "-", re.split(r"[ <>=!~\[;(]", needed)[0]).lower() not in there
]
print("\n".join(missing) or "No broken requirements")
