"""What others published: profiles as chains and profiles, and plans as plans of ours.

PipeDream's, dnn-partitioning's and Piper's readers turn a file into a
`schedopt.importing.graph.Graph`; `linearising` turns that into layers. Superscaler (Aceso) and
Sailor have tables. `launch_files` reads what engines are started with.
"""

from __future__ import annotations

from schedopt.importing.chains import SOURCES, Imported, import_chain, import_degrees
from schedopt.importing.launch_files.deepspeed_json import Pipeline
from schedopt.importing.launches import ImportedLaunch, import_launch
from schedopt.importing.plans import import_plan
from schedopt.importing.profiles import ImportedProfile, import_profile

__all__ = [
    "SOURCES",
    "Imported",
    "ImportedLaunch",
    "ImportedProfile",
    "Pipeline",
    "import_chain",
    "import_degrees",
    "import_launch",
    "import_plan",
    "import_profile",
]
