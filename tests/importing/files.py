"""Small profiles, written for the tests."""

from __future__ import annotations

import json
from typing import Any

# An input, a convolution, a ReLU in place, a view without a time, a pair that joins again.
PIPEDREAM = """\
node1 -- Input -- forward_compute_time=9.000, backward_compute_time=0.000, \
activation_size=100.0, parameter_size=0.000
node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.5, \
backward_compute_time=2.0005, activation_size=1000.000, parameter_size=40.000
node3 -- ReLU(inplace) -- forward_compute_time=0.25, backward_compute_time=0.75, \
activation_size=1000.0, parameter_size=0.000
node4 -- LSTM(8, 8) -- forward_compute_time=3, backward_compute_time=4, \
activation_size=[600.0; 30.0; 20.0], parameter_size=200.000
node5 -- __getitem__(0) -- forward_compute_time=0.000, backward_compute_time=0.000, \
activation_size=600.0, parameter_size=0.000
node6 -- Dropout(p=0.2) -- forward_compute_time=0.5, backward_compute_time=0.5, \
activation_size=600.0, parameter_size=0.000
node7 -- Add -- forward_compute_time=0.000, backward_compute_time=0.000, \
activation_size=600.0, parameter_size=7.000
node8 -- Linear(in_features=8) -- forward_compute_time=1, backward_compute_time=2, \
activation_size=50.0, parameter_size=80.000
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
\tnode4 -- node5
\tnode5 -- node6
\tnode5 -- node7
\tnode6 -- node7
\tnode7 -- node8
"""


def half(name: str, number: int, color: int, time: float, size: float, back: bool) -> Any:
    return {
        "name": name,
        "id": number,
        "supportedOnFpga": 1,
        "cpuLatency": 1e9,
        "fpgaLatency": time,
        "isBackwardNode": True if back else 0,
        "colorClass": color,
        "size": size,
    }


def dnn_document() -> dict[str, Any]:
    """A diamond of four nodes: 1 feeds 2 and 3, both feed 4. Latencies in ms."""
    return {
        "maxFPGAs": 6,
        "nodes": [
            half("a", 1, 1, 0.1, 300.0, False),
            half("agrad", 11, 1, 0.3, 300.0, True),
            half("b", 2, 2, 0.2, 20.0, False),
            half("bgrad", 12, 2, 0.4, 20.0, True),
            half("c", 3, 3, 0.5, 31.0, False),
            half("cgrad", 13, 3, 0.5, 31.0, True),
            half("d", 4, 4, 1.0, 1008.0, False),
            half("dgrad", 14, 4, 2.0, 1008.0, True),
        ],
        "edges": [
            {"sourceId": 1, "destId": 2, "cost": 5.0, "size": 100.0},
            {"sourceId": 1, "destId": 3, "cost": 5.0, "size": 90.0},
            {"sourceId": 2, "destId": 4, "cost": 5.0, "size": 20.0},
            {"sourceId": 3, "destId": 4, "cost": 5.0, "size": 30.0},
            {"sourceId": 12, "destId": 14, "cost": 5.0, "size": 8.0},
        ],
    }


def piper_node(number: int, name: str, time: float, longer: float, size: float, kept: float) -> Any:
    entry = {"parameterSize": size, "memoryUsageB": 9.0, "syncTimeFw": {}}
    return {
        "id": number,
        "name": name,
        "TMPCs": {
            "1": [
                {"id": "vanilla", "timePerSample": time, "memoryUsageA": kept, **entry},
                {"id": "activation recomp", "timePerSample": longer, "memoryUsageA": 1.0, **entry},
            ],
            "2": [],
        },
    }


def piper_document() -> dict[str, Any]:
    """Token ids, a mask, an embedding, two blocks, and a pooler that takes no time."""
    return {
        "maxDevices": 10,
        "nodes": [
            piper_node(0, "tensor", 0.0, 0.0, 0.0, 64.0),
            piper_node(1, "Embedding", 0.001116, 0.001413, 500.0, 70.0),
            piper_node(2, "tensor", 0.0, 0.0, 0.0, 32.0),
            piper_node(3, "Block", 0.03, 0.04, 176.0, 606.0),
            piper_node(4, "Block", 0.03, 0.04, 176.0, 606.0),
            piper_node(5, "Pooler", 0.0, 0.0, 14.0, 31.0),
        ],
        "edges": [
            {"sourceId": 0, "destId": 1, "communicationCost": 64.0},
            {"sourceId": 1, "destId": 3, "communicationCost": 31.0},
            {"sourceId": 2, "destId": 3, "communicationCost": 32.0},
            {"sourceId": 2, "destId": 4, "communicationCost": 32.0},
            {"sourceId": 3, "destId": 4, "communicationCost": 16.0},
            {"sourceId": 4, "destId": 5, "communicationCost": 17.0},
        ],
    }


DNN = json.dumps(dnn_document())
PIPER = json.dumps(piper_document())
FILES = {"pipedream": PIPEDREAM, "dnn-partitioning": DNN, "piper": PIPER}
