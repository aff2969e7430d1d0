package http1

import "strconv"

// AppendLine appends "name: value CRLF". Neither may hold a line break: names are ours, values come from a parser or are ours.
func AppendLine[N, V ~string | ~[]byte](dst []byte, name N, value V) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// AppendFields appends all fields that are not dropped.
func (h *Head) AppendFields(dst []byte) []byte {
	for i := range h.fields[:h.n] {
		if f := &h.fields[i]; !f.Drop {
			dst = AppendLine(dst, h.Name(f), h.Value(f))
		}
	}
	return dst
}

// AppendStatusLine appends the status line with the standard phrase, or none for statuses without.
func AppendStatusLine(dst []byte, status int) []byte {
	if status == 200 {
		return append(dst, "HTTP/1.1 200 OK\r\n"...)
	}
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, phrase(status)...)
	return append(dst, "\r\n"...)
}

// MaxChunkHead bounds what AppendChunkHead appends.
const MaxChunkHead = 18

// AppendChunkHead appends the line before n bytes of chunk data, n > 0; CRLF follows the data.
func AppendChunkHead(dst []byte, n int) []byte {
	dst = strconv.AppendInt(dst, int64(n), 16)
	return append(dst, "\r\n"...)
}

// AppendLastChunk appends the last chunk, the trailer fields that are not dropped, and the end of the body.
func AppendLastChunk(dst []byte, trailer *Head) []byte {
	dst = append(dst, "0\r\n"...)
	if trailer != nil {
		dst = trailer.AppendFields(dst)
	}
	return append(dst, "\r\n"...)
}

// Blank makes r a request of which nothing is known.
func (r *Request) Blank() {
	r.reset(nil)
	r.Restart()
	r.method, r.target, r.authority, r.protocol = Span{}, Span{}, Span{}, Span{}
	r.Expect, r.Upgrade = false, false
}

func phrase(status int) string {
	if status >= 100 && status < len(phrases) {
		return phrases[status]
	}
	return ""
}

// phrases are the reason phrases of RFC 9110 and its extensions.
var phrases = [512]string{
	100: "Continue", 101: "Switching Protocols", 103: "Early Hints",
	200: "OK", 201: "Created", 202: "Accepted", 203: "Non-Authoritative Information", 204: "No Content", 205: "Reset Content",
	206: "Partial Content", 207: "Multi-Status", 300: "Multiple Choices", 301: "Moved Permanently", 302: "Found", 303: "See Other",
	304: "Not Modified", 307: "Temporary Redirect", 308: "Permanent Redirect", 400: "Bad Request", 401: "Unauthorized",
	402: "Payment Required", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 406: "Not Acceptable",
	407: "Proxy Authentication Required", 408: "Request Timeout", 409: "Conflict", 410: "Gone", 411: "Length Required",
	412: "Precondition Failed", 413: "Content Too Large", 414: "URI Too Long", 415: "Unsupported Media Type",
	416: "Range Not Satisfiable", 417: "Expectation Failed", 418: "I'm a teapot", 421: "Misdirected Request",
	422: "Unprocessable Content", 423: "Locked", 424: "Failed Dependency", 425: "Too Early", 426: "Upgrade Required",
	428: "Precondition Required", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
	451: "Unavailable For Legal Reasons", 499: "Client Closed Request", 500: "Internal Server Error", 501: "Not Implemented",
	502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout", 505: "HTTP Version Not Supported",
	507: "Insufficient Storage", 511: "Network Authentication Required",
}
