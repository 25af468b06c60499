// Package capture reads packets from capture files, from standard input and from interfaces, and
// writes them to files. It knows frames and link types, and of SMC only as much as the kernel needs
// to be told to hand over the packets of SMC: see [Live].
//
// Every input is a [Source]. Files are pcap and pcapng in all their variants, also compressed with
// gzip ([Open]); several inputs become one in the order of time ([Merge]); [Create] writes packets
// as pcapng.
//
// Nothing in a file is believed. [MaxPacket] and [MaxInterfaces] bound the memory of one input, no
// matter which lengths and numbers the file gives. An error names file, packet and offset. Reading
// goes on after it if the next packet can be found.
//
// The Internet-Drafts draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng define the formats.
// Comments call them "pcap" and "pcapng" with the number of the section.
package capture
