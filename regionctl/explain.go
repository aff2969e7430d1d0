package regionctl

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/answer"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/proxy/program"
)

// postExplain looks a request up in a published version, with the compiler that the nodes use.
func (c *Controller) postExplain(r *call) (any, error) {
	req, err := body[ExplainRequest](r)
	if err != nil {
		return nil, err
	}
	look, err := lookup(req)
	if err == nil && len(req.Claims) > 0 && !isObject(req.Claims) {
		err = badRequest("claims must be a JSON object")
	}
	if err != nil {
		return nil, err
	}
	word := "latest"
	if req.Version > 0 {
		word = strconv.FormatUint(req.Version, 10)
	}
	rec, err := c.known(r.Context(), word)
	if err != nil {
		return nil, err
	}
	snap, err := c.open(r.Context(), rec)
	if err != nil {
		return nil, err
	}
	p, err := program.Compile(snap, nil)
	if err != nil {
		return nil, err
	}
	return Explained{Version: p.Number, Explanation: p.Explain(look, program.Caller{Claims: req.Claims, Consumer: req.Consumer}, c.opt.Now())}, nil
}

func isObject(raw json.RawMessage) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal(raw, &m) == nil && m != nil
}

func lookup(req ExplainRequest) (*program.Request, error) {
	headers := map[string]string{}
	for k, v := range req.Headers {
		headers[strings.ToLower(k)] = v
	}
	parsed, err := program.ParseRequest(req.Method, req.URL, headers)
	if err != nil {
		return nil, badRequest("%s: %v; a proxy answers 400", req.URL, err)
	}
	return parsed, nil
}

// getDNSExplain says which cell a client of an address is sent to, and by which slot of which plan.
func (c *Controller) getDNSExplain(r *call) (any, error) {
	name, client := r.URL.Query().Get("name"), r.URL.Query().Get("client")
	if name == "" {
		return nil, badRequest("name is required")
	}
	prefix, err := clientPrefix(client)
	if err != nil {
		return nil, err
	}
	p, ok := c.plan()
	if !ok {
		return nil, fault(http.StatusServiceUnavailable, "no_plan", "There is no steering plan yet", "")
	}
	return explainDNS(p, canonicalName(name), prefix), nil
}

func clientPrefix(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, badRequest("client must be an address or a prefix, not %q", s)
	}
	return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
}

func explainDNS(p *steer.Plan, name string, client netip.Prefix) DNSExplained {
	out := DNSExplained{Name: name, Client: client.String(), Plan: PlanID{p.Epoch, p.Number}, TTL: p.TTL, Slot: -1}
	set, ok := p.Names[name]
	if !ok {
		out.Why = "the plan does not steer this name"
		return out
	}
	out.Steered, out.Set = true, p.Sets[set].ID
	loc, by := locality(p, client)
	out.Locality = p.Localities[loc].ID
	if by.IsValid() {
		out.Prefix = by.String()
	}
	out.Shares = map[cells.CellID]int{}
	for _, i := range p.Rows[set][loc] {
		out.Shares[p.Cells[i].ID]++
	}
	return pickSlot(p, set, loc, client, out)
}

// locality is the place of the longest prefix that holds the client; 0 is unknown.
func locality(p *steer.Plan, client netip.Prefix) (index int, by netip.Prefix) {
	for i, l := range p.Localities {
		for _, pre := range l.Prefixes {
			if pre.Contains(client.Addr()) && pre.Bits() <= client.Bits() && (!by.IsValid() || pre.Bits() > by.Bits()) {
				index, by = i, pre
			}
		}
	}
	return index, by
}

// pickSlot is the answer that a router gives to a query with the client's subnet (RFC 7871). Without one, clients of an
// unknown place take the slots in turn.
func pickSlot(p *steer.Plan, set, loc int, client netip.Prefix, out DNSExplained) DNSExplained {
	out.Slot = answer.Slot(p.Sets[set], client.Addr())
	cell := p.Cells[p.Rows[set][loc][out.Slot]]
	out.Cell = cell.ID
	for _, a := range cell.Addresses {
		out.Addresses = append(out.Addresses, a.String())
	}
	out.Why = fmt.Sprintf("slot %d of set %s at %s names %s", out.Slot, out.Set, out.Locality, cell.ID)
	if loc == 0 {
		out.Why += "; queries without a client subnet take the slots in turn"
	}
	if p.AllDown {
		out.Why += "; no cell is usable, so all are answered as up"
	}
	return out
}
