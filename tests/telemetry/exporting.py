"""A hook for processes that a test starts: spans go in batches to the collector OTEL_EXPORTER_OTLP_ENDPOINT."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from django_rmq_retry.telemetry.opentelemetry import Tracing

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace = Tracing(tracer_provider=provider)
