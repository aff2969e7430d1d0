// Package dnsask asks one DNS server one question, as an ordinary client of some subnet would.
package dnsask

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// optionECS is the EDNS option code of client subnets (RFC 7871).
const optionECS = 8

// A asks one server (host:port, UDP) once for the A records of host on behalf of a client in subnet, an IPv4 prefix. The TTL
// is the smallest of theirs. No record is no error.
func A(ctx context.Context, server, host string, subnet netip.Prefix) (addrs []netip.Addr, ttl time.Duration, err error) {
	query, id, err := askFor(host, subnet)
	if err != nil {
		return nil, 0, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", server)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(query); err != nil {
		return nil, 0, err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		return nil, 0, err
	}
	return addresses(buf[:n], id)
}

// patience bounds the wait for an answer.
const patience = 500 * time.Millisecond

func askFor(host string, subnet netip.Prefix) (packet []byte, id uint16, err error) {
	name, err := dnsmessage.NewName(host + ".")
	if err != nil {
		return nil, 0, err
	}
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	id = binary.BigEndian.Uint16(random[:])
	var opt dnsmessage.ResourceHeader
	if err := opt.SetEDNS0(1232, dnsmessage.RCodeSuccess, false); err != nil {
		return nil, 0, err
	}
	addr := subnet.Masked().Addr().As4()
	ecs := append([]byte{0, 1, byte(subnet.Bits()), 0}, addr[:(subnet.Bits()+7)/8]...)
	msg := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id},
		Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
		Additionals: []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{
			Options: []dnsmessage.Option{{Code: optionECS, Data: ecs}},
		}}},
	}
	packet, err = msg.Pack()
	return packet, id, err
}

func addresses(packet []byte, id uint16) ([]netip.Addr, time.Duration, error) {
	var msg dnsmessage.Message
	if err := msg.Unpack(packet); err != nil {
		return nil, 0, err
	}
	if msg.ID != id || !msg.Response {
		return nil, 0, errors.New("not an answer to the query")
	}
	if msg.RCode != dnsmessage.RCodeSuccess {
		return nil, 0, fmt.Errorf("answer is %s", msg.RCode)
	}
	var addrs []netip.Addr
	least := time.Duration(-1)
	for _, a := range msg.Answers {
		if r, ok := a.Body.(*dnsmessage.AResource); ok {
			addrs = append(addrs, netip.AddrFrom4(r.A))
			if ttl := time.Duration(a.Header.TTL) * time.Second; least < 0 || ttl < least {
				least = ttl
			}
		}
	}
	return addrs, max(least, 0), nil
}
