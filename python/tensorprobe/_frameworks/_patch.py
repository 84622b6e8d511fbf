"""Functions of frameworks that sessions listen to."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from tensorprobe._messages import complain


def _is_traced() -> Callable[[], bool]:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return getattr(compiler, "is_compiling", None) or bool


class _Wrapped:
    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.was_own = name in vars(owner)
        self.original = vars(owner)[name] if self.was_own else getattr(owner, name)
        self.listeners: list[Listener] = []
        original, listeners = getattr(owner, name), self.listeners
        is_traced = _is_traced()

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_traced():  # nothing has happened yet
                return original(*args, **kwargs)
            heard: list[Listener] = []
            while rest := [one for one in listeners if one not in heard]:
                heard += rest  # some may come while others are told
                for one in rest:
                    one.call(one.before, *args, **kwargs)
            result = original(*args, **kwargs)
            for one in heard:
                one.call(one.after, result, *args, **kwargs)
            return result

        self.wrapper = wrapper
        setattr(owner, name, wrapper)

    def restore(self) -> None:
        if vars(self.owner).get(self.name) is not self.wrapper:
            return  # somebody has wrapped it again
        if self.was_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)


_wrapped: dict[tuple[int, str], _Wrapped] = {}


class Listener:
    """A handle: is called before and after a function, until ``remove()``."""

    def __init__(
        self, place: _Wrapped, before: Callable[..., None] | None, after: Callable[..., None] | None
    ) -> None:
        self._place = place
        self.before, self.after = before, after
        self._has_complained = False

    def call(self, function: Callable[..., None] | None, *args: Any, **kwargs: Any) -> None:
        """Call it. What it raises is said once, and goes no further."""
        if function is None:
            return
        try:
            function(*args, **kwargs)
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                with contextlib.suppress(Exception):
                    complain(f"{self._place.name}: {type(error).__name__}: {error}")

    def remove(self) -> None:
        """Take it back. The last one of a function puts the original in its place."""
        place = self._place
        if self not in place.listeners:
            return
        place.listeners.remove(self)
        if not place.listeners:
            _wrapped.pop((id(place.owner), place.name), None)
            place.restore()


def listen(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Listener:
    """Hear of every call of ``owner.name``: of a module's function, a class's or object's method.

    before gets the call's arguments (of a class's method with self), after the result and then
    those. A call that raises has no after.
    """
    place = _wrapped.get((id(owner), name))
    if place is None or vars(owner).get(name) is not place.wrapper:
        place = _wrapped[id(owner), name] = _Wrapped(owner, name)
    listener = Listener(place, before, after)
    place.listeners.append(listener)
    return listener
