"""Streams that the engine writes to their sockets itself, between the events that Python has something to say about."""

from fastllm_core._C import StreamRelay, replica_of
from fastllm_core.errors import ResourceExhaustedError

# Of one choice: what stands before and behind the text, as a JSON string, of news that end nothing; and of its end:
# what is behind the text, what is in place of all that when there is no text, what is between finish_reason and
# stop_reason, what is behind that. None where Python writes the end.
End = tuple[str, str, str, str]
Events = tuple[str, str, End | None]


class RelayedConnection:
    """One streamed answer on its connection. It is the relay's or Python's at any time, never both's.

    `events` has what each choice's events are made of; see Writer.events().
    """

    __slots__ = ("_answer", "_chunked", "_events", "_number", "_relay", "_transport")

    def __init__(self, relay: StreamRelay, cycle, answer, events: list[Events]):
        self._relay = relay
        self._transport = cycle.transport
        self._chunked = bool(cycle.chunked_encoding)
        self._answer = answer
        self._events = events
        self._number = 0

    @property
    def free(self) -> bool:
        """Nothing that Python wrote waits for the socket."""
        return not self._transport.is_closing() and self._transport.get_write_buffer_size() == 0

    def hand_over(self, outputs: list[tuple[int, int, float]], begin: bytes) -> bool:
        """From now on the relay writes. outputs: handle, index and time of the last tokens, by choice; begin: what is
        to be written first. False when it cannot: then Python goes on, beginning with `begin`."""
        made = [
            (handle, index, prefix, suffix, last, replica_of(handle), end)
            for (handle, index, last), (prefix, suffix, end) in zip(outputs, self._events)
        ]
        fd = self._transport.get_extra_info("socket").fileno()
        try:
            self._number = self._relay.attach(fd, self._chunked, made, begin)
        except ResourceExhaustedError:
            return False
        return True

    def take_back(self) -> tuple[int, list[float], list[bool]] | None:
        """From now on Python writes: the tokens that went out meanwhile, when the last of each choice did, and which
        choices' ends did. None when the relay did not have it."""
        if not self._number:
            return None
        unsent, tokens, size, last_times, ended = self._relay.detach(self._number)
        self._number = 0
        self._answer.bytes += size
        if unsent and not self._transport.is_closing():  # a client that has left: uvloop raises for it
            self._transport.write(unsent)
        return tokens, last_times, ended


def relayed_connection(state, scope, writer) -> RelayedConnection | None:
    """For a response whose head has been sent; None when Python has to write each event."""
    shared = scope.get("state", {})
    cycle, answer = shared.get("cycle"), shared.get("answer")
    if state.relay is None or cycle is None or answer is None:
        return None
    events = writer.events()
    if events is None or cycle.transport.get_extra_info("sslcontext") is not None:
        return None
    return RelayedConnection(state.relay, cycle, answer, events)
