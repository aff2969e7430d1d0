package cellgate

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

// lookup asks one server for the A records of host on behalf of a client in subnet.
func lookup(ctx context.Context, server, host string, subnet netip.Prefix) ([]netip.Addr, error) {
	query, id, err := askFor(host, subnet)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		return nil, err
	}
	return addresses(buf[:n], id)
}

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

func addresses(packet []byte, id uint16) ([]netip.Addr, error) {
	var msg dnsmessage.Message
	if err := msg.Unpack(packet); err != nil {
		return nil, err
	}
	if msg.ID != id || !msg.Response {
		return nil, errors.New("not an answer to the query")
	}
	if msg.RCode != dnsmessage.RCodeSuccess {
		return nil, fmt.Errorf("answer is %s", msg.RCode)
	}
	var addrs []netip.Addr
	for _, a := range msg.Answers {
		if r, ok := a.Body.(*dnsmessage.AResource); ok {
			addrs = append(addrs, netip.AddrFrom4(r.A))
		}
	}
	return addrs, nil
}
