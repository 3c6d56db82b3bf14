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


def number_field(number, value):
    """A field with a number of a protobuf message."""
    return bytes([number << 3]) + varint(value)


def fields(message):
    """The fields of a protobuf message by their numbers; all of them must have bytes."""
    found = {}
    while message:
        number, length, shift, at = message[0] >> 3, 0, 0, 1
        while True:
            length |= (message[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] <= 0x7F:
                break
        found[number], message = message[at : at + length], message[at + length :]
    return found


def packed(name, body=b""):
    """A message of Flight SQL in an `Any`."""
    return field(1, PACKAGE + name.encode()) + field(2, body)


def command(name, body=b""):
    """The descriptor of a command."""
    return flight.FlightDescriptor.for_command(packed(name, body))
