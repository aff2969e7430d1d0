package meter

// Routes is how many exchanges each route had since the meter began, by route id; those without a series of their own are
// under "other".
func (m *Meter) Routes() map[string]uint64 {
	out := map[string]uint64{}
	for k, p := range withOther(m.routes) {
		for i := range m.shards {
			s := &m.shards[i]
			s.mu.Lock()
			if one := s.series[p]; one != nil {
				for _, n := range one.codes {
					out[k.name] += n
				}
			}
			s.mu.Unlock()
		}
	}
	return out
}
