"""The rivals, one module each: imported only when asked for, absent ones named with the reason."""

from __future__ import annotations

from importlib import import_module

from experiments.benchmarks.peers.base import Absent, Peer, Runner

#: Name to module; the class in it is called `Library`.
PEERS = {
    "numpy": "numpy_peer",
    "numexpr": "numexpr_peer",
    "torch": "torch_eager",
    "torch.compile": "torch_compile",
    "jax": "jax_peer",
    "onnxruntime": "onnxruntime_peer",
    "openvino": "openvino_peer",
}


def load_peers(names: list[str], threads: int) -> tuple[dict[str, Peer], list[Absent]]:
    """Import the libraries and tell each how many threads it has.

    Returns
    -------
    peers : dict of str to Peer
    absent : list of Absent
        Those that cannot be imported, with the reason.
    """
    peers: dict[str, Peer] = {}
    absent = []
    for name in names:
        try:
            peers[name] = import_module(f"experiments.benchmarks.peers.{PEERS[name]}").Library(threads)
        except ImportError as error:
            absent.append(Absent(name, str(error).splitlines()[0]))
    return peers, absent


__all__ = ["PEERS", "Absent", "Peer", "Runner", "load_peers"]
