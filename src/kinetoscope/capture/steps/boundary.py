"""Noticing calls of a class's method without leaving a frame of ours on the user's stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinetoscope.capture import torch_private


class Boundary:
    """Stands in for a class's method: calls ``seen(instance)`` whenever an instance looks it up to call it."""

    def __init__(self, owner: type, name: str, seen: Callable[[Any], None]) -> None:
        self.owner, self.name, self.seen = owner, name, seen
        self.method: Any = getattr(owner, name)
        self.inherited = name not in vars(owner)
        self.installed = False
        self.switch = torch_private.dynamo_switch()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.method
        prior = self.switch(None)
        try:
            self.seen(instance)
        finally:
            self.switch(prior)
        return self.method.__get__(instance, owner)

    def install(self) -> None:
        if not self.installed:
            setattr(self.owner, self.name, self)
            self.installed = True

    def remove(self) -> None:
        if self.installed:
            if self.inherited:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.method)
            self.installed = False


class Aftermath(Boundary):
    """Calls ``seen(instance)`` when the method has returned; for an ``__exit__``, which is looked up at the entry."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.method
        bound = self.method.__get__(instance, owner)

        def call(*arguments: Any) -> Any:
            result = bound(*arguments)
            self.seen(instance)
            return result

        return call
