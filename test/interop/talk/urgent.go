package talk

import "fmt"

// An UrgentConn is a Conn with urgent data, MSG_OOB of a socket: the methods are the same as in
// smc.Conn.
type UrgentConn interface {
	Conn
	WriteUrgent(b []byte) (int, error)
	WaitUrgent() error
	ReadUrgent() (byte, error)
	AtUrgentMark() (bool, error)
	SetUrgentInline(bool) error
}

// behindUrgent is how many bytes follow an urgent one, which they must not pass.
const behindUrgent = 100

// urgentLater is from where on urgent data may be longer than a buffer: the bytes before the urgent
// byte have to be read first.
const urgentLater = 8 << 10

// urgent sends urgent data and takes such, in turns, or only the client sends. Where bytes stay in
// the stream they are looked for at the mark.
func urgent(c Conn, s Script, client bool) error {
	u, ok := c.(UrgentConn)
	if !ok {
		return fmt.Errorf("a %T has no urgent data", c)
	}
	if s.Kind == UrgentInline {
		if err := u.SetUrgentInline(true); err != nil {
			return fmt.Errorf("inline: %w", err)
		}
	}
	if err := agree(c, client); err != nil { // nothing urgent arrives before that
		return err
	}
	for i := range max(s.Rounds, 1) {
		seed := s.Seed + uint64(2*i)
		first, second := sendUrgent, receiveUrgent
		if !client {
			first, second = receiveUrgent, sendUrgent
		}
		err := first(u, s, seed)
		switch {
		case err != nil:
		case s.Kind == UrgentPush: // or the next byte would take the place of this one
			err = agree(c, client)
		default:
			err = second(u, s, seed)
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	if client {
		return closeBoth(c)
	}
	return expectEnd(c)
}

// agree has the server answer that it is ready.
func agree(c Conn, client bool) error {
	if !client {
		_, err := c.Write([]byte{1})
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// sendUrgent writes n bytes, of which the last is urgent, and others behind them.
func sendUrgent(c UrgentConn, s Script, seed uint64) error {
	p := pattern{state: seed}
	b := make([]byte, max(s.N, 1))
	p.fill(b)
	if n, err := c.WriteUrgent(b); err != nil {
		return fmt.Errorf("urgent write at %d of %d: %w", n, len(b), err)
	}
	return send(c, behindUrgent, seed+1)
}

// receiveUrgent takes them.
func receiveUrgent(c UrgentConn, s Script, seed uint64) error {
	p := pattern{state: seed}
	all := make([]byte, max(s.N, 1))
	p.fill(all)
	before, value := len(all)-1, all[len(all)-1]
	inline := s.Kind == UrgentInline
	take := func() error {
		if err := c.WaitUrgent(); err != nil {
			return fmt.Errorf("waiting for urgent data: %w", err)
		}
		if inline {
			return nil
		}
		got, err := c.ReadUrgent()
		if err == nil && got != value {
			err = fmt.Errorf("it is %#x, want %#x", got, value)
		}
		if err != nil {
			return fmt.Errorf("urgent byte: %w", err)
		}
		return nil
	}
	if before < urgentLater {
		if err := take(); err != nil {
			return err
		}
	}
	if err := receive(c, before, seed); err != nil {
		return err
	}
	if before >= urgentLater {
		if err := take(); err != nil {
			return err
		}
	}
	if inline {
		if at, err := c.AtUrgentMark(); !at || err != nil {
			return fmt.Errorf("after what comes before the urgent byte: at the mark %v, %v", at, err)
		}
		b := make([]byte, 1+behindUrgent)
		if n, err := c.Read(b[:1]); n != 1 || err != nil || b[0] != value {
			return fmt.Errorf("urgent byte in its place: %d bytes %#x, %v, want %#x", n, b[0], err, value)
		}
		if at, err := c.AtUrgentMark(); at || err != nil {
			return fmt.Errorf("after the urgent byte: at the mark %v, %v", at, err)
		}
	}
	return receive(c, behindUrgent, seed+1)
}
