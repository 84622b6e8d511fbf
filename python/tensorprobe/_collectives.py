"""What goes into and comes out of every collective, when, and who called it: cc_distribution."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _core, _interception
from tensorprobe._call_stacks import CallStack, CallStacks
from tensorprobe._interception import RECV, SEND, Operator
from tensorprobe._messages import complain, say

if TYPE_CHECKING:
    import torch

ASYNC, DONE, POLLED, FAILED = 1, 2, 4, 8
"""Flags of a record, as in tensorprobe/record.h."""

_C10D = f"{os.sep}torch{os.sep}distributed{os.sep}distributed_c10d.py"
_PRIME = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FEW = 32
"""How many calls are asked at most whether they have ended, when another one begins."""


class _Group:
    """A process group: its members, and what has been called in it."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self.known = weakref.ref(group)
        self.size = int(group.size())
        self.rank = int(group.rank())
        try:
            self.ranks = list(dist.get_process_group_ranks(group))
        except (KeyError, RuntimeError, ValueError):
            self.ranks = list(range(self.size))  # of a group that C++ has made
        self.text = f"{group.group_name}:{ranks_text(self.ranks)}"
        self.count = [0, 0]
        """The number of the next call, and the hash of all before."""
        self.peers: dict[tuple[int, int, int], list[int]] = {}
        """The same for each other side of send or recv."""
        self.keys: dict[tuple[str, int], int] = {}


class _Call:
    """One that has been issued and has not ended."""

    __slots__ = ("by_python", "group", "number", "on_host", "operator", "outputs", "place", "work")

    def __init__(self, place: int, operator: Operator, group: _Group, number: int) -> None:
        self.place = place
        self.operator = operator
        self.group = group
        self.number = number
        self.outputs: list[torch.Tensor] = []
        self.work: Any = None
        self.by_python = False
        self.on_host = True


def ranks_text(ranks: Sequence[int]) -> str:
    """0-3 of [0, 1, 2, 3], 0-6/2 of [0, 2, 4, 6], else 0,3,4."""
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step > 0 and all(b - a == step for a, b in itertools.pairwise(ranks)):
            return f"{ranks[0]}-{ranks[-1]}" + (f"/{step}" if step > 1 else "")
    if len(ranks) == 2 and ranks[1] == ranks[0] + 1:
        return f"{ranks[0]}-{ranks[1]}"
    return ",".join(str(rank) for rank in ranks)


class Collectives:
    """Records collectives from ``start()`` to ``stop()``; a handle among those of hooks."""

    def __init__(self, monitor: _core.Monitor, close: Callable[[], None]) -> None:
        self._monitor = monitor
        self._close = close
        self._pid = os.getpid()
        self._config: dict[str, Any] = {}
        self._is_aloud = False
        self._core: _core.Collectives | None = None
        self._groups: dict[str, _Group] = {}
        self._signatures: dict[Any, int] = {}
        self._pending: dict[int, _Call] = {}
        self._step = -1
        self._counts: dict[str, int] = {}
        """How often each operation has been called in the step."""
        self._task = -1
        self._stacks: CallStacks | None = None
        self._is_logging = True
        self._first_step = monitor.open_step
        self._log: dict[str, dict[Any, dict[str, Any]]] = {}
        self._unbox: Callable[[Any], Any] = lambda group: group
        self.calls = 0
        self.unwaited = 0
        """Works that a Python function of torch.distributed gave and nobody has waited for."""

    # ---- now and then ----

    def configure(self, config: dict[str, Any], *, aloud: bool) -> None:
        """Do what this configuration says from the next ``watch()`` on. aloud: print the log."""
        self._config = config
        self._is_aloud = aloud

    def watch(self, handles: list[Any]) -> None:
        """Watch from now on, if that is wanted; the handle to end it joins the others."""
        config = self._config
        if not config["cc_enable"]:
            return
        if not _interception.is_possible():
            return
        if self._core is None:
            from torch.distributed import ProcessGroup

            self._unbox = ProcessGroup.unbox
            self._core = _core.Collectives(self._monitor, self.poll)
        if self._is_logging and not self.calls:
            self._first_step = self._monitor.open_step
        patterns = config["cc_codeline"]
        self._stacks = CallStacks(patterns) if patterns or self._is_logging else None
        _interception.listen(self)
        handles.append(self)

    def remove(self) -> None:
        """Watch no more. Calls that run are recorded as what is known of them."""
        _interception.forget(self)
        if self._core is not None:
            self.poll()
            self.unwaited += sum(call.by_python for call in self._pending.values())
            self._pending.clear()
            self._core.close()
            self._core = None

    def tell_unwaited(self) -> None:
        """Say at the end how many works nobody has waited for."""
        if self.unwaited:
            complain(
                f"{self.unwaited} asynchronous collectives of {self.calls} were never waited for: "
                "call wait() on the work that async_op=True gives, before the tensor is used"
            )

    def before_step(self, *_: Any) -> None:
        """Print what was called from where, once a step has ended; with cc_log_only end the run.

        A hook of the optimizer, in front of its step.
        """
        if not self._config["cc_enable"] or not self._is_logging or self._pid != os.getpid():
            return
        if self._monitor.open_step == self._first_step:
            return
        self._is_logging = False
        if not self._config["cc_codeline"]:
            self._stacks = None
        log_only = self._config["cc_log_only"]
        log = {name: list(calls.values()) for name, calls in sorted(self._log.items())}
        self._log.clear()
        if self._is_aloud and (log or log_only):
            text = "> collectives of the first step, by operation:\n" + json.dumps(log, indent=2)
            if log_only:
                print(text, flush=True)
            else:
                say(text)
        if log_only:
            self._close()
            raise SystemExit(0)

    # ---- calls ----

    def begin(self, operator: Operator, args: tuple[Any, ...]) -> Any:
        core = self._core
        if core is None:
            return None
        try:
            if self._pending:
                self.poll(most=_FEW)
            return self._begin(core, operator, args)
        except Exception as error:
            core.trouble(error)
            return None

    def _begin(
        self, core: _core.Collectives, operator: Operator, args: tuple[Any, ...]
    ) -> _Call | None:
        inputs = list(operator.inputs(args)) if operator.inputs else []
        outputs = list(operator.outputs(args)) if operator.outputs else []
        agreed = list(operator.agreed(args)) if operator.agreed else inputs or outputs
        first = agreed[0] if agreed else None
        if first is not None and first.is_meta:
            return None  # no values, no communication: shapes are being worked out
        group = self._group_of(args[operator.group], boxed=not operator.of_objects)
        peer = -1
        if operator.root >= 0:
            root = args[operator.root]
            peer = group.ranks[root] if 0 <= root < len(group.ranks) else -1
            if root != group.rank:
                inputs = [] if operator.by_root[0] else inputs
                outputs = [] if operator.by_root[1] else outputs
        shapes = agreed if operator.agreed or operator.number in (SEND, RECV) else ()
        signature = self._signature(operator, peer, shapes, first)
        sequence, running = self._count(group, operator, peer, args, signature)
        self.calls += 1
        location = 0
        if self._stacks is not None:
            stack = self._stacks.walk()
            if self._is_logging and stack.wanted:
                self._note(operator, group, [*inputs, *outputs] or agreed, stack)
            if not stack.wanted:
                return None
            location = self._location(stack)
        if self._config["cc_log_only"]:
            return None
        number = self._number(operator.name)
        if self._config["cc_pre_hook"] and inputs:
            core.values(self._key(group, operator, _core.ROLE_PRE), number, inputs)
        flags = 0
        if operator.asynchronous >= 0:
            place = operator.asynchronous
            flags = ASYNC if len(args) <= place or args[place] else 0
        issued = core.issue(
            self._key(group, operator, _core.ROLE_NONE),
            number,
            first,
            operator.number,
            args[operator.tag] & 0xFFFFFFFF if operator.tag >= 0 else 0,
            peer,
            group.size,
            sequence,
            _bytes(inputs),
            _bytes(outputs),
            signature,
            running,
            location,
            flags,
        )
        if issued is None or issued < 0:
            return None
        call = _Call(issued, operator, group, number)
        call.outputs = outputs
        call.on_host = first is None or first.is_cpu
        return call

    def issued(self, call: _Call | None, work: Any) -> None:
        core = self._core
        if call is None or core is None:
            return
        try:
            core.returned(call.place)
            if work is None:
                self._end(core, call, 0)
                return
            call.work = work
            self._pending[id(work)] = call
            caller = sys._getframe(1).f_back  # of the kernel
            call.by_python = caller is not None and caller.f_code.co_filename.endswith(_C10D)
            self._await_backward()
        except Exception as error:
            core.trouble(error)

    def failed(self, call: _Call | None) -> None:
        self._finish(call, FAILED)

    def waiting(self, work: Any) -> _Call | None:
        call = self._pending.get(id(work))
        if call is not None and self._core is not None:
            self._core.waiting(call.place)
        return call

    def waited(self, call: _Call | None, ok: bool) -> None:
        core = self._core
        if call is None or core is None or id(call.work) not in self._pending:
            return
        if ok and not call.on_host and not _has_ended(call):
            # Its stream waits, not this thread: the values are read in that stream.
            outputs, call.outputs, call.by_python = call.outputs, [], False
            self._record(core, call, outputs)
            return
        self._finish(call, 0 if ok else FAILED)

    def waited_for(self, tensor: Any) -> None:
        """C++ has waited for the call that gives this tensor."""
        if self._pending:
            place = tensor.data_ptr()
            for call in list(self._pending.values()):
                if any(output.data_ptr() == place for output in call.outputs):
                    self.waited(call, True)

    def poll(self, most: int = 0) -> None:
        """See which calls have ended that nobody has waited for in Python."""
        ended = [call for call in list(self._pending.values())[: most or None] if _has_ended(call)]
        for call in ended:
            self.unwaited += call.by_python
            self._finish(call, POLLED | (FAILED if _has_failed(call) else 0))

    # ---- parts ----

    def _finish(self, call: _Call | None, flags: int) -> None:
        core = self._core
        if call is None or core is None:
            return
        try:
            self._end(core, call, flags)
        except Exception as error:
            core.trouble(error)

    def _end(self, core: _core.Collectives, call: _Call, flags: int) -> None:
        self._pending.pop(id(call.work), None)
        core.end(call.place, flags | DONE)
        outputs, call.outputs, call.work = call.outputs, [], None
        if not flags & FAILED:
            self._record(core, call, outputs)

    def _record(self, core: _core.Collectives, call: _Call, outputs: list[torch.Tensor]) -> None:
        if outputs:
            key = self._key(call.group, call.operator, _core.ROLE_POST)
            core.values(key, call.number, outputs)

    def _await_backward(self) -> None:
        """DDP's reducer waits in C++ at the end of the backward: have a look right after it."""
        import torch

        task = torch._C._current_graph_task_id()
        if task not in (-1, self._task):
            self._task = task
            queue = torch.autograd.Variable._execution_engine.queue_callback
            # Queued again from within, it comes behind what the reducer queues after this.
            queue(lambda: queue(self.poll))

    def _group_of(self, given: Any, *, boxed: bool) -> _Group:
        group = self._unbox(given) if boxed else given
        name = group.group_name
        known = self._groups.get(name)
        if known is None or known.known() is not group:
            new = _Group(group)
            if known is not None and known.text == new.text:
                known.known = new.known  # another object for it
                return known
            self._groups[name] = new
            return new
        return known

    def _signature(self, operator: Operator, peer: int, tensors: Sequence[Any], first: Any) -> int:
        pair = operator.number in (SEND, RECV)
        mark = (
            "" if pair else operator.name,
            -1 if pair else peer,
            tuple(tensor.shape for tensor in tensors),
            None if first is None else first.dtype,
        )
        known = self._signatures.get(mark)
        if known is None:
            shapes = [list(shape) for shape in mark[2]]
            text = repr((mark[0], mark[1], shapes, str(mark[3])))
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            known = self._signatures[mark] = int.from_bytes(digest, "little")
        return known

    @staticmethod
    def _count(
        group: _Group, operator: Operator, peer: int, args: tuple[Any, ...], signature: int
    ) -> tuple[int, int]:
        count = group.count
        if operator.number in (SEND, RECV):
            tag = args[operator.tag] if operator.tag >= 0 else -1
            count = group.peers.setdefault((operator.number, peer, tag), [0, 0])
        sequence = count[0]
        count[0] += 1
        count[1] = ((count[1] ^ signature) * _PRIME) & _MASK
        return sequence, count[1]

    def _number(self, name: str) -> int:
        step = self._monitor.open_step
        if self._step != step:
            self._step = step
            self._counts.clear()
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        return number

    def _key(self, group: _Group, operator: Operator, role: int) -> int:
        known = group.keys.get((operator.name, role))
        if known is None:
            slot = -1
            if role != _core.ROLE_NONE:
                slot = operator.input_slot if role == _core.ROLE_PRE else operator.output_slot
            known = self._monitor.key(
                operator.name, _core.COMM, role, slot=slot, global_name=group.text
            )
            group.keys[operator.name, role] = known
        return known

    def _location(self, stack: CallStack) -> int:
        if stack.key < 0:
            stack.key = self._monitor.key(stack.place, _core.COMM, global_name="")
        return stack.key + 1

    def _note(
        self, operator: Operator, group: _Group, tensors: Sequence[Any], stack: CallStack
    ) -> None:
        calls = self._log.setdefault(operator.name, {})
        texts = [f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.") for tensor in tensors]
        mark = (id(stack), group.text, tuple(texts))
        if mark in calls:
            calls[mark]["calls"] += 1
        elif len(calls) < 1000:
            calls[mark] = {
                "calls": 1,
                "group": group.text.partition(":")[0],
                "ranks": group.text.rpartition(":")[2],
                "tensors": texts,
                "stack": stack.lines,
            }


def _bytes(tensors: Sequence[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _has_ended(call: _Call) -> bool:
    with contextlib.suppress(Exception):
        if call.work.is_completed():
            return True
        # Gloo's works learn of their end after their futures, or never (reduce_scatter). An
        # accelerator's future is done as soon as its stream waits.
        return call.on_host and bool(call.work.get_future().done())
    return False


def _has_failed(call: _Call) -> bool:
    try:
        future = call.work.get_future()
    except Exception:
        return False  # this backend's works have none
    try:
        future.value()
    except Exception:
        return True
    return False
