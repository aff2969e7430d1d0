package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
)

// Options of a run.
type Options struct {
	// Rate is the load in requests per second; 0 = DefaultRate.
	Rate float64
	// Target is the node, cell or region that fails; empty = the drill chooses.
	Target string
	// Force runs it although the world is not whole.
	Force bool
	// Say tells the operator what goes on, a line each.
	Say func(line string)
	// Record keeps what is known of the run: before anything is broken, and at the end.
	Record func(Result) error
}

// DefaultRate is the load of a drill, in requests per second.
const DefaultRate = 150

// Bounds in time.
const (
	wholeWithin = 90 * time.Second // after a drill the world is whole again
	undoWithin  = 2 * time.Minute
	warmUp      = 4 * time.Second // of load before anything is broken
)

// Refused says that the world is not in order, so that a drill would prove nothing and might hurt.
type Refused struct{ Why []string }

func (r *Refused) Error() string {
	return "the world is not in order, so a drill would prove nothing: " + strings.Join(r.Why, "; ") + " (--force runs it nevertheless)"
}

// Check says why the world is not whole; nothing when it is.
func Check(ctx context.Context, w World) []string {
	processes, err := w.Processes(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var why []string
	for name, pid := range processes {
		if pid == 0 {
			why = append(why, name+" is down")
		}
	}
	slices.Sort(why)
	return append(why, checkStatus(ctx, w)...)
}

func checkStatus(ctx context.Context, w World) (why []string) {
	s, err := w.Status(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	if r := s.Rollout; r != nil {
		why = append(why, fmt.Sprintf("version %d is being rolled out (%s)", r.Version, r.State))
	}
	layout := w.Layout()
	if n := len(layout.nodes()); len(s.Nodes) != n {
		why = append(why, fmt.Sprintf("%d of %d nodes are known", len(s.Nodes), n))
	}
	for _, n := range s.Nodes {
		if n.Served != s.Version || !n.Ready {
			why = append(why, fmt.Sprintf("%s serves version %d of %d (ready: %v)", n.ID, n.Served, s.Version, n.Ready))
		}
	}
	for _, c := range s.Cells {
		if c.Healthy == nil || !*c.Healthy || c.State != cells.Active {
			why = append(why, fmt.Sprintf("%s is %s and not known to be healthy", c.ID, c.State))
			if c.Healthy != nil && *c.Healthy {
				why[len(why)-1] = fmt.Sprintf("%s is %s", c.ID, c.State)
			}
		}
	}
	return why
}

// Run runs the drill and puts everything back. The error is nil when the figures were measured, whatever they are; a
// *Refused when nothing was begun.
func Run(ctx context.Context, w World, d Drill, o Options) (Result, error) {
	if o.Rate == 0 {
		o.Rate = DefaultRate
	}
	if err := d.Aim(w.Layout(), o.Target); err != nil {
		return Result{}, err
	}
	if why := Check(ctx, w); len(why) > 0 && !o.Force {
		return Result{}, &Refused{why}
	}
	began := time.Now().UTC()
	s := &session{world: w, at: w.Layout(), o: o, result: Result{
		Form: Form, ID: began.Format(stamp) + "-" + d.Name, Drill: d.Name, Began: began, Rate: o.Rate, Target: o.Target, Outcome: Running,
	}}
	defer s.close()
	if st, err := w.Status(ctx); err == nil {
		s.result.Version = st.Version
	}
	if err := o.Record(s.result); err != nil {
		return s.result, err
	}
	err := d.run(ctx, s)
	return s.finish(ctx, err)
}

// finish puts back what the drill has not put back itself, waits for the world to be whole and judges.
func (s *session) finish(ctx context.Context, err error) (Result, error) {
	undone := s.undo(ctx)
	r := &s.result
	switch {
	case ctx.Err() != nil:
		err = errors.Join(errors.New("broken off"), undone)
		r.Outcome, r.Why = BrokenOff, err.Error()
	case err != nil || undone != nil:
		err = errors.Join(err, undone)
		r.Outcome, r.Why = Unproved, err.Error()
	default:
		took, why := s.whole(ctx)
		s.figure(most("world whole again after", "s", wholeWithin.Seconds(), took.Seconds()))
		if r.judge(); len(why) > 0 {
			r.Why += "; not whole: " + strings.Join(why, "; ")
		}
	}
	for _, run := range s.runs {
		r.Requests += len(run.Wait())
	}
	r.Ended = time.Now().UTC()
	return *r, errors.Join(err, s.o.Record(*r))
}

// whole waits until the world is whole.
func (s *session) whole(ctx context.Context) (took time.Duration, missing []string) {
	s.say("waiting until the world is whole")
	began := time.Now()
	for {
		missing = Check(ctx, s.world)
		if took = time.Since(began); len(missing) == 0 || took > wholeWithin || !pause.For(ctx, 250*time.Millisecond) {
			return took, missing
		}
	}
}

// session is one run of a drill.
type session struct {
	world  World
	at     Layout
	o      Options
	result Result
	runs   []*load.Run
	undos  []undo // the last one first
	doors  doors
	watch  *watch
}

type undo struct {
	what string
	do   func(context.Context) error
}

func (s *session) say(format string, a ...any) { s.o.Say(fmt.Sprintf(format, a...)) }

func (s *session) figure(f Figure) { s.result.Figures = append(s.result.Figures, f) }

// later remembers how to put something back. It is called before the thing is done, so that no interruption falls between.
func (s *session) later(what string, do func(context.Context) error) {
	s.undos = append(s.undos, undo{what, do})
}

// undo puts everything back, the last first, even if the run was broken off.
func (s *session) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	var errs []error
	for len(s.undos) > 0 {
		u := s.undos[len(s.undos)-1]
		s.undos = s.undos[:len(s.undos)-1]
		s.say("putting back: %s", u.what)
		if err := u.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("could not put back (%s): %w", u.what, err))
			s.result.Undone = append(s.result.Undone, "FAILED: "+u.what+": "+err.Error())
			continue
		}
		s.result.Undone = append(s.result.Undone, u.what)
	}
	return errors.Join(errs...)
}

func (s *session) close() {
	if s.watch != nil {
		s.watch.stop()
	}
	for _, r := range s.runs {
		r.Wait()
	}
	s.doors.close()
}

// order gives an order now that a later one takes back.
func (s *session) stopFor(ctx context.Context, what string, names ...string) error {
	s.later(what+" is started again", func(ctx context.Context) error { return s.world.Order(ctx, Start, names...) })
	return s.world.Order(ctx, Stop, names...)
}
