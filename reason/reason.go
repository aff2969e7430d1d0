// Package reason is the closed enum of why the proxy answered a request itself.
// One value feeds the problem document, the x-cellgate-reason header, the access log, the metric and the documentation.
package reason

import "strconv"

// Reason is why the proxy answered itself. The zero value None means the upstream answered.
type Reason uint8

// The reasons, grouped by the stage that gives them.
const (
	None Reason = iota
	BadRequest
	BadFraming
	HeaderTooLarge
	TooManyHeaders
	URLTooLong
	BodyTooLarge
	HeaderTimeout
	BodyTimeout
	Misdirected
	UpgradeRefused
	ConnectRefused
	DeadlineInvalid
	DeadlineExpired
	NoRoute
	MethodNotAllowed
	RouteDenied
	Denied
	TokenMissing
	TokenInvalid
	TokenExpired
	TokenUnproven
	KeyInvalid
	CertificateMissing
	CertificateInvalid
	CertificateExpired
	CertificateRevoked
	AuthUnavailable
	ScopeMissing
	RoleMissing
	ClaimRefused
	CrossSite
	DecisionDenied
	DecisionUnavailable
	ConsumerRefused
	CORSRefused
	RatePlatform
	RateTenant
	RateConsumer
	RateUser
	QuotaConsumer
	Overloaded
	Draining
	ForwardRefused
	NoEndpoint
	BreakerOpen
	PoolFull
	ConnectFailed
	ConnectTimeout
	UpstreamProtocol
	UpstreamReset
	UpstreamInvalid
	UpstreamTimeout
	TotalTimeout
	ClientGone
	Internal
	count
)

type entry struct {
	token  string
	status int
	title  string
}

// The table is the single home of tokens, statuses and titles.
var table = [count]entry{
	None:                {"", 0, ""},
	BadRequest:          {"bad_request", 400, "The request is malformed"},
	BadFraming:          {"bad_framing", 400, "The message length is ambiguous or invalid"},
	HeaderTooLarge:      {"header_too_large", 431, "The request headers are too large"},
	TooManyHeaders:      {"too_many_headers", 431, "The request has too many headers"},
	URLTooLong:          {"url_too_long", 414, "The request URL is too long"},
	BodyTooLarge:        {"body_too_large", 413, "The request body is too large"},
	HeaderTimeout:       {"header_timeout", 408, "The request headers did not arrive in time"},
	BodyTimeout:         {"body_timeout", 408, "The request body did not arrive in time"},
	Misdirected:         {"misdirected", 421, "This connection does not serve that host"},
	UpgradeRefused:      {"upgrade_refused", 400, "This upgrade is not offered"},
	ConnectRefused:      {"connect_refused", 405, "CONNECT is not offered"},
	DeadlineInvalid:     {"deadline_invalid", 400, "The request deadline is malformed"},
	DeadlineExpired:     {"deadline_expired", 504, "The request deadline had passed on arrival"},
	NoRoute:             {"no_route", 404, "No route takes this request"},
	MethodNotAllowed:    {"method_not_allowed", 405, "The route does not take this method"},
	RouteDenied:         {"route_denied", 503, "The operator has switched this route off"},
	Denied:              {"denied", 401, "The operator has revoked these credentials"},
	TokenMissing:        {"token_missing", 401, "A token is required"},
	TokenInvalid:        {"token_invalid", 401, "The token is not valid"},
	TokenExpired:        {"token_expired", 401, "The token has expired or is not valid yet"},
	TokenUnproven:       {"token_unproven", 401, "The token is bound to a client certificate that this connection has not shown"},
	KeyInvalid:          {"key_invalid", 401, "The API key is not valid"},
	CertificateMissing:  {"certificate_missing", 401, "A client certificate is required"},
	CertificateInvalid:  {"certificate_invalid", 401, "The client certificate is not accepted"},
	CertificateExpired:  {"certificate_expired", 401, "The client certificate has expired or is not valid yet"},
	CertificateRevoked:  {"certificate_revoked", 401, "The client certificate is revoked"},
	AuthUnavailable:     {"auth_unavailable", 503, "Authentication is not possible right now"},
	ScopeMissing:        {"scope_missing", 403, "The token lacks a required scope"},
	CORSRefused:         {"cors_refused", 403, "Scripts of this origin may not make this request"},
	RoleMissing:         {"role_missing", 403, "The caller lacks a required role"},
	ClaimRefused:        {"claim_refused", 403, "The token lacks a required claim"},
	CrossSite:           {"cross_site", 403, "A page of another site may not make this request with the session's cookie"},
	DecisionDenied:      {"decision_denied", 403, "The service that decides about the request denies it"},
	DecisionUnavailable: {"decision_unavailable", 503, "The service that decides about the request gives no answer"},
	ConsumerRefused:     {"consumer_refused", 403, "This consumer may not use the route"},
	RatePlatform:        {"platform_rate", 503, "The platform's request rate is exhausted"},
	RateTenant:          {"rate_tenant", 429, "The tenant's request rate is exhausted"},
	RateConsumer:        {"rate_consumer", 429, "The consumer's request rate is exhausted"},
	RateUser:            {"rate_user", 429, "The user's request rate is exhausted"},
	QuotaConsumer:       {"quota_consumer", 429, "The consumer's daily quota is exhausted"},
	Overloaded:          {"overloaded", 503, "The gateway is overloaded"},
	Draining:            {"draining", 503, "The gateway node is shutting down"},
	ForwardRefused:      {"forward_refused", 503, "The cell that has this client now has no room"},
	NoEndpoint:          {"no_endpoint", 503, "No endpoint of the upstream is usable"},
	BreakerOpen:         {"breaker_open", 503, "Too many exchanges with the upstream have failed"},
	PoolFull:            {"pool_full", 503, "The upstream's connection pool is full"},
	ConnectFailed:       {"connect_failed", 503, "The upstream refused the connection"},
	ConnectTimeout:      {"connect_timeout", 504, "The upstream did not accept a connection in time"},
	UpstreamProtocol:    {"upstream_protocol", 503, "The upstream does not speak HTTP/2"},
	UpstreamReset:       {"upstream_reset", 503, "The upstream closed the connection before answering"},
	UpstreamInvalid:     {"upstream_invalid", 503, "The upstream's answer was not valid HTTP"},
	UpstreamTimeout:     {"upstream_timeout", 504, "The upstream did not answer in time"},
	TotalTimeout:        {"total_timeout", 504, "The request took longer than its route allows"},
	ClientGone:          {"client_gone", 499, "The client went away"},
	Internal:            {"internal", 500, "The gateway failed"},
}

// String is the stable token, such as "no_route"; empty for None.
func (r Reason) String() string { return r.entry().token }

// Status is the HTTP status of the answer; 0 for None.
func (r Reason) Status() int { return r.entry().status }

// GRPC is the gRPC status code of the answer to a gRPC caller (statuscodes.md of the gRPC project): what the caller may do
// about it decides, as with the HTTP status.
func (r Reason) GRPC() uint8 {
	switch r.Status() {
	case 401:
		return 16 // UNAUTHENTICATED
	case 403:
		return 7 // PERMISSION_DENIED
	case 404, 405:
		return 12 // UNIMPLEMENTED
	case 408, 504:
		return 4 // DEADLINE_EXCEEDED
	case 413, 429, 431:
		return 8 // RESOURCE_EXHAUSTED
	case 421, 503:
		return 14 // UNAVAILABLE
	case 499:
		return 1 // CANCELLED
	}
	return 13 // INTERNAL
}

// Title is one sentence for people, the same for every occurrence (RFC 9457, section 3.1.3).
func (r Reason) Title() string { return r.entry().title }

// Gateway says whether the cause lies in the gateway or its client, not in the upstream.
func (r Reason) Gateway() bool {
	switch r {
	case NoEndpoint, BreakerOpen, PoolFull, ConnectFailed, ConnectTimeout, UpstreamProtocol, UpstreamReset, UpstreamInvalid, UpstreamTimeout:
		return false
	}
	return r != None
}

// Certificate says whether a client certificate is what was wrong or missing.
func (r Reason) Certificate() bool {
	return r == CertificateMissing || r == CertificateInvalid || r == CertificateExpired || r == CertificateRevoked || r == TokenUnproven
}

// Challenge is the WWW-Authenticate of an answer with 401 (RFC 6750, section 3). No scheme is registered for certificates of TLS,
// and a 401 names one (RFC 9110, section 11.6.1).
func (r Reason) Challenge() string {
	switch r {
	case CertificateMissing, CertificateInvalid, CertificateExpired, CertificateRevoked:
		return "ClientCertificate"
	case TokenMissing:
		return "Bearer"
	case KeyInvalid:
		return `Bearer error="invalid_token", error_description="The API key is not valid"`
	case Denied:
		return `Bearer error="invalid_token", error_description="The credentials are revoked"`
	case TokenExpired:
		return `Bearer error="invalid_token", error_description="The token has expired or is not valid yet"`
	}
	return `Bearer error="invalid_token"`
}

// Passes says whether the reason passes soon by itself.
func (r Reason) Passes() bool {
	switch r {
	case BreakerOpen, PoolFull, Overloaded, Draining, ForwardRefused, NoEndpoint, AuthUnavailable, DecisionUnavailable:
		return true
	}
	return false
}

// AppendProblem appends the problem document (RFC 9457). Everything in it is ours, so nothing needs escaping.
func (r Reason) AppendProblem(b []byte, status int, requestID string) []byte {
	b = append(b, `{"type":"urn:cellgate:reason:`...)
	b = append(b, r.String()...)
	b = append(b, `","title":"`...)
	b = append(b, r.Title()...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"reason":"`...)
	b = append(b, r.String()...)
	b = append(b, `","request_id":"`...)
	b = append(b, requestID...)
	return append(b, "\"}\n"...)
}

// All lists every reason but None, in order.
func All() []Reason {
	all := make([]Reason, 0, count-1)
	for r := None + 1; r < count; r++ {
		all = append(all, r)
	}
	return all
}

func (r Reason) entry() entry {
	if r >= count {
		return table[Internal]
	}
	return table[r]
}

// Doubled is why a request with so many Authorization and X-API-Key fields is refused, whatever they say; None = it has one of each at
// most.
func Doubled(tokens, keys int) Reason {
	switch {
	case tokens > 1:
		return TokenInvalid
	case keys > 1:
		return KeyInvalid
	}
	return None
}
