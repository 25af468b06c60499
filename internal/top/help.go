package top

// helpText is what h and ? show in place of the table; lines of up to 79 columns.
const helpText = `Keys
  b c n t f w  order by bytes, connections, new ones, TCP, full, wakeups
  s p          group by service, or by program
  /            choose, as gosmc ss does: mode tcp, dport 6379, program nginx
  Ctrl-Z       stop; fg brings the view back
  h ?          this page
  q            end

Columns
  Unix         connections outside TCP between programs of 'gosmc run'
  SMC-D SMC-R  connections through shared memory, or by RDMA between hosts
  TCP          connections that stay TCP; Why TCP has the reason of most
  In/s Out/s   bytes to and from the server; n/a where nobody counts them
  New/s        connections that began
  Full/s       how often a writer found the buffer full
  Wakeups/s    how often one side had to wake the other

gosmc ss --why has the remedy of each reason. Any key goes back.`
