"""Published profiles, turned into chains: PipeDream, dnn-partitioning, Piper.

Each reader turns a file into a `schedopt.importing.graph.Graph`; `linearising` turns that into
layers.
"""

from __future__ import annotations

from schedopt.importing.chains import SOURCES, Imported, import_chain

__all__ = ["SOURCES", "Imported", "import_chain"]
