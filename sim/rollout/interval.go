package rollout

import "math"

// Interval is the exact 95% confidence interval of a share, k of n (Clopper and Pearson, 1934).
func Interval(k, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	if k > 0 {
		low = bisect(func(p float64) bool { return 1-atMost(k-1, n, p) < .025 })
	}
	if high = 1; k < n {
		high = bisect(func(p float64) bool { return atMost(k, n, p) > .025 })
	}
	return low, high
}

// bisect is the end of the shares from 0 on for which below holds.
func bisect(below func(p float64) bool) float64 {
	from, to := 0.0, 1.0
	for range 60 {
		if mid := (from + to) / 2; below(mid) {
			from = mid
		} else {
			to = mid
		}
	}
	return from
}

// atMost is the probability of at most k of n with the share p.
func atMost(k, n int, p float64) (sum float64) {
	all, _ := math.Lgamma(float64(n + 1))
	for i := 0; i <= k; i++ {
		a, _ := math.Lgamma(float64(i + 1))
		b, _ := math.Lgamma(float64(n - i + 1))
		sum += math.Exp(all - a - b + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}
