// A client whose sockets no library sees: connects, sends, and compares what comes back.
//
// usage: go_client PORT     against exchange.py server
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

const size = 300000

func pattern(seed int) []byte {
	bytes := make([]byte, size)
	for place := range bytes {
		bytes[place] = byte((place*seed + place/7) % 251)
	}
	return bytes
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	check(err)
	_, err = connection.Write(pattern(3))
	check(err)
	got := make([]byte, size)
	_, err = io.ReadFull(connection, got)
	check(err)
	if string(got) != string(pattern(5)) {
		check(fmt.Errorf("not the same bytes"))
	}
	check(connection.(*net.TCPConn).CloseWrite())
	fmt.Println("exchanged")
}
