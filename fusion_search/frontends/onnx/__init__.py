"""The ONNX reader: a model file becomes a graph of core operators, for given extents of its symbolic dimensions."""

from __future__ import annotations

from fusion_search.frontends.onnx.source import OnnxSource, load_for_feeds, load_onnx

__all__ = ["OnnxSource", "load_for_feeds", "load_onnx"]
