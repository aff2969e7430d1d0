package cellgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/dnsask"
	"github.com/cellgate/cellgate/internal/pause"
)

// operator runs the regionctl command against one region's controller.
type operator struct {
	bin, server, token, ca string
}

func (o operator) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(o.bin, "regionctl"), args...)
	cmd.Env = append(childEnv(), "REGIONCTL_SERVER="+o.server, "REGIONCTL_TOKEN="+o.token, "REGIONCTL_CA="+o.ca)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && errs.Len() > 0 {
		return nil, errors.New(strings.Join(strings.Fields(errs.String()), " ")) // it says who it is
	}
	if err != nil {
		return nil, fmt.Errorf("regionctl %s: %w", args[0], err)
	}
	return out.Bytes(), nil
}

// worldStatus is what of `regionctl status -o json` says whether the world is ready.
type worldStatus struct {
	Version uint64 `json:"version"`
	Rollout *struct {
		Previous uint64 `json:"previous"`
	} `json:"rollout"`
	Nodes []struct {
		ID     cells.NodeID `json:"id"`
		Served uint64       `json:"served"`
	} `json:"nodes"`
	Cells []struct {
		ID      cells.CellID `json:"id"`
		Healthy *bool        `json:"healthy"`
	} `json:"cells"`
	// Warnings say what the controller doesn't know or can't do at present.
	Warnings []string `json:"warnings"`
}

func (o operator) status(ctx context.Context) (worldStatus, error) {
	var s worldStatus
	raw, err := o.run(ctx, "status", "-o", "json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("regionctl status: %w", err)
	}
	return s, nil
}

// readiness waits for a world to be ready.
type readiness struct {
	*layout
	operators []operator // one per region
	say       func(format string, args ...any)
	// broken says why the world can't become ready; nil while it may.
	broken func() error
}

// publishFirst publishes the document as version 1 unless something is published already. A controller that has warnings
// may not have read its store yet, so its "nothing is published" is no ground to publish.
func (r *readiness) publishFirst(ctx context.Context, document string) error {
	return r.until(ctx, "the control plane", func(ctx context.Context) error {
		s, err := r.operators[0].status(ctx)
		if err != nil || s.Version > 0 {
			return err
		}
		if len(s.Warnings) > 0 {
			return errors.New(s.Warnings[0])
		}
		_, err = r.operators[0].run(ctx, "config", "publish", document, "--message", "sample of a new world")
		return err
	})
}

// wait returns when every region's controller lists every node with the published version served, the first version's rollout
// done and every cell healthy, and the DNS sends each region's clients to it, the same twice in a row.
func (r *readiness) wait(ctx context.Context) error {
	for i, o := range r.operators {
		what := fmt.Sprintf("nodes and cells as %s sees them", r.topology.Regions[i].ID)
		err := r.until(ctx, what, func(ctx context.Context) error {
			s, err := o.status(ctx)
			if err != nil {
				return err
			}
			return r.missing(s)
		})
		if err != nil {
			return err
		}
	}
	last := ""
	return r.until(ctx, "the DNS", func(ctx context.Context) error {
		now, err := r.answers(ctx)
		if err == nil && now != last {
			last, err = now, errors.New("the answers are still changing")
		}
		return err
	})
}

// missing says what a status lacks for the world to be ready.
func (r *readiness) missing(s worldStatus) error {
	served, healthy := map[cells.NodeID]uint64{}, map[cells.CellID]bool{}
	for _, n := range s.Nodes {
		served[n.ID] = n.Served
	}
	for _, c := range s.Cells {
		healthy[c.ID] = c.Healthy != nil && *c.Healthy
	}
	var behind, sick []string
	nodes := 0
	for _, c := range r.topology.Cells() {
		for _, n := range c.Nodes {
			if nodes++; served[n.ID] != s.Version {
				behind = append(behind, string(n.ID))
			}
		}
		if !healthy[c.ID] {
			sick = append(sick, string(c.ID))
		}
	}
	switch {
	case s.Version == 0:
		return errors.New("nothing is published")
	case len(behind) > 0:
		return fmt.Errorf("%d of %d nodes don't serve version %d yet (%s …)", len(behind), nodes, s.Version, behind[0])
	case s.Rollout != nil && s.Rollout.Previous == 0:
		return errors.New("the rollout of the first version has not ended yet")
	case len(sick) > 0:
		return fmt.Errorf("%d of %d cells are not known to be healthy yet (%s …)", len(sick), len(s.Cells), sick[0])
	}
	return nil
}

// answers asks every router for the clients of every region; the result is one line per answer.
func (r *readiness) answers(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, region := range r.topology.Regions {
		var own []netip.Addr
		for _, c := range region.Cells {
			own = append(own, c.Addresses...)
		}
		client := netip.PrefixFrom(region.Clients[0].Addr(), 24)
		for _, server := range r.routers() {
			got, _, err := dnsask.A(ctx, server.String(), sampleHost, client)
			if err != nil {
				return "", fmt.Errorf("%s: %w", server, err)
			}
			if len(got) == 0 || slices.ContainsFunc(got, func(a netip.Addr) bool { return !slices.Contains(own, a) }) {
				return "", fmt.Errorf("%s sends clients of %s to %v", server, region.ID, got)
			}
			fmt.Fprintln(&all, region.ID, server, got)
		}
	}
	return all.String(), nil
}

// until repeats try until it succeeds, and tells every few seconds what is still missing.
func (r *readiness) until(ctx context.Context, what string, try func(context.Context) error) error {
	told := time.Now()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if bad := r.broken(); bad != nil {
			return bad
		}
		if ctx.Err() != nil || !pause.For(ctx, 200*time.Millisecond) {
			if cause := context.Cause(ctx); errors.Is(cause, errTooLong) {
				return fmt.Errorf("%w: %s: %w", cause, what, err)
			}
			return context.Cause(ctx)
		}
		if time.Since(told) > 3*time.Second {
			told = time.Now()
			r.say("waiting for %s: %v", what, err)
		}
	}
}
