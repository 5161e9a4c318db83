"""Messages and their AMQP bytes. Standard library only: no clock, no threads, no randomness."""

from django_rmq_retry.messages.codecs import Codec
from django_rmq_retry.messages.message import DONE, Instruction, Settlement
from django_rmq_retry.messages.properties import Headers, Properties, decode_properties, encode_properties
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.messages.texts import ErrorNote

__all__ = [
    "DONE",
    "Codec",
    "ErrorNote",
    "Headers",
    "Instruction",
    "Properties",
    "Reason",
    "Settlement",
    "Stamp",
    "decode_properties",
    "encode_properties",
]
