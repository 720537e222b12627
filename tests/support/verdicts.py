"""Verdicts as tests compare them."""

from __future__ import annotations

from deliveryd.channels.base import Misconfigured, Refused, Verdict


def nameless(verdict: Verdict) -> Verdict:
    """The verdict without the host's name, which differs from test to test."""
    return verdict._replace(by=None) if isinstance(verdict, Refused | Misconfigured) else verdict
