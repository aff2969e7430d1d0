package traces

import "google.golang.org/protobuf/encoding/protowire"

// Numbers of fields of opentelemetry/proto/collector/trace/v1/trace_service.proto and trace/v1/trace.proto.
const (
	requestResourceSpans  = 1
	resourceSpansResource = 1
	resourceSpansScope    = 2
	resourceAttribute     = 1
	scopeSpansScope       = 1
	scopeName             = 1
	mostOverhead          = 64 // of tags and lengths around the spans
)

// resource is who sends, as the field of ResourceSpans, by the conventions for services and Kubernetes' names alike.
func resource(o Options) (b buffer) {
	at := b.open(resourceSpansResource)
	for _, a := range [][2]string{{"service.name", "cellgate-proxy"}, {"service.instance.id", o.Node}, {"cellgate.cell", o.Cell}, {"cloud.region", o.Region}} {
		if a[1] == "" {
			continue
		}
		pair := b.key(resourceAttribute, a[0])
		v := b.open(pairValue)
		s := b.open(valueString)
		b.put(a[1], maxPath)
		b.close(s)
		b.close(v)
		b.close(pair)
	}
	b.close(at)
	return b
}

// message is an ExportTraceServiceRequest around encoded spans.
func (e *Exporter) message(spans buffer) []byte {
	var scope buffer
	at := scope.open(scopeSpansScope)
	name := scope.open(scopeName)
	scope.put("github.com/cellgate/cellgate/proxy", maxPath)
	scope.close(name)
	scope.close(at)

	inner := uint64(len(scope) + len(spans))
	outer := uint64(len(e.prefix)+protowire.SizeTag(resourceSpansScope)+protowire.SizeVarint(inner)) + inner
	b := make([]byte, 0, outer+mostOverhead)
	b = protowire.AppendVarint(protowire.AppendTag(b, requestResourceSpans, protowire.BytesType), outer)
	b = append(b, e.prefix...)
	b = protowire.AppendVarint(protowire.AppendTag(b, resourceSpansScope, protowire.BytesType), inner)
	return append(append(b, scope...), spans...)
}
