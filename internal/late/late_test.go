package late

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestContext(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	soon, cancelSoon := context.WithTimeout(context.Background(), time.Hour)
	defer cancelSoon()
	for _, tt := range []struct {
		name   string
		parent context.Context
		after  time.Duration
		cancel bool
		want   error
	}{
		{"before its time", context.Background(), time.Minute, false, nil},
		{"at its time", context.Background(), 0, false, context.DeadlineExceeded},
		{"parent ended", cancelled, time.Minute, false, context.Canceled},
		{"cancelled", context.Background(), time.Minute, true, context.Canceled},
		{"parent with a deadline", soon, time.Minute, false, nil},
	} {
		for _, waits := range []bool{false, true} {
			c := WithTimeout(tt.parent, tt.after)
			if waits {
				c.Done()
			}
			if tt.cancel {
				c.Cancel()
			}
			if got := c.Err(); got != tt.want {
				t.Errorf("%s, waited for %v: Err %v, want %v", tt.name, waits, got, tt.want)
			}
			select {
			case <-c.Done():
				if tt.want == nil {
					t.Errorf("%s, waited for %v: done, want not", tt.name, waits)
				}
			default:
				if tt.want != nil {
					t.Errorf("%s, waited for %v: not done, want %v", tt.name, waits, tt.want)
				}
			}
			c.Cancel()
		}
	}
	c := WithTimeout(soon, 2*time.Hour)
	defer c.Cancel()
	want, _ := soon.Deadline()
	if got, ok := c.Deadline(); !ok || !got.Equal(want) {
		t.Errorf("deadline %v, %v, want that of the parent, %v", got, ok, want)
	}
}

func TestContextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := WithTimeout(context.Background(), time.Second)
		defer c.Cancel()
		start := time.Now()
		<-c.Done()
		if got := time.Since(start); got != time.Second || c.Err() != context.DeadlineExceeded {
			t.Errorf("done after %v with %v, want after 1s with %v", got, c.Err(), context.DeadlineExceeded)
		}
	})
}
