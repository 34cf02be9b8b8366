"""Spans of all-reduces for OpenTelemetry, in processes that ``INAPROTO_TRACING=on`` or ``--tracing on`` asks.

Processes that trace nothing import :mod:`inaproto.tracing.opening` alone, which imports no OpenTelemetry.
"""
