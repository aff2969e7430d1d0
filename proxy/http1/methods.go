package http1

// Idempotent methods may be sent twice (I7).
func Idempotent(method string) bool {
	return method == "GET" || method == "HEAD" || method == "OPTIONS"
}

// HasBodyByNature says whether a method gets an explicit Content-Length: 0 (RFC 9110, section 8.6).
func HasBodyByNature(method string) bool {
	return method == "POST" || method == "PUT" || method == "PATCH"
}
