// Package nodeapi is the gRPC protocol between regionctl, proxies, routers, probers and the regionctls of other regions.
package nodeapi

//go:generate go run ../internal/protogen nodeapi.proto
