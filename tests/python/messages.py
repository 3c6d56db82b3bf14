"""Messages of Flight SQL by hand, for clients that have no classes for them."""

import pyarrow.flight as flight

PACKAGE = b"type.googleapis.com/arrow.flight.protocol.sql."


def varint(number):
    """A number as protobuf writes it."""
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number, payload):
    """A field with bytes of a protobuf message."""
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def command(name, body=b""):
    """The descriptor of a command."""
    return flight.FlightDescriptor.for_command(field(1, PACKAGE + name.encode()) + field(2, body))
