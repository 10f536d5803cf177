"""Weights from trainers to inference workers, whatever way both cut them, once for every step.

    # a trainer's rank                                  # a worker's rank
    sender = Sender(engine, 0, parameters)              receiver = Receiver(engine, 0, parameters)
    ship(sender.describe()); told = everybody's()       ship(receiver.describe())
    sender.join(told)                                   receiver.join(told)
    ...                                                 ...
    sender.update(7)            # all ranks have it     receiver.version        # 7, or still 6

The routing table is computed once, from what all ranks hold (braid.weights.plan): every element
that a worker holds comes from one trainer, from all of them evenly. A version is there on all
workers or on none. docs/weights.md tells the life of a step.
"""

from braid.weights.holdings import Holdings, Parameter
from braid.weights.pieces import Piece, Replicate, Shard, boxes, piece_of
from braid.weights.plan import Route, Table, plan
from braid.weights.receiver import Receiver
from braid.weights.sender import Sender

__all__ = [
    "Holdings",
    "Parameter",
    "Piece",
    "Receiver",
    "Replicate",
    "Route",
    "Sender",
    "Shard",
    "Table",
    "boxes",
    "piece_of",
    "plan",
]
