// The echo programs in Go, whose sockets no library sees; see echo_client.py for the protocol.
//
// usage: echo server PORT | client PORT
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(connection net.Conn) {
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		length, err := strconv.Atoi(strings.TrimSpace(line))
		check(err)
		if _, err = io.CopyN(connection, reader, int64(length)); err != nil {
			return
		}
	}
}

func talk(number int, address string) {
	connection, err := net.Dial("tcp", address)
	check(err)
	source := rand.New(rand.NewSource(int64(number)))
	for _, size := range []int{1, 3000, 70000, 1500000, 17, 4000000} {
		block := make([]byte, size)
		source.Read(block)
		// Written beside reading: the server sends back while it reads.
		go func() {
			_, err := fmt.Fprintf(connection, "%d\n", size)
			check(err)
			_, err = connection.Write(block)
			check(err)
		}()
		got := make([]byte, size)
		_, err := io.ReadFull(connection, got)
		check(err)
		if !bytes.Equal(got, block) {
			check(fmt.Errorf("other bytes of %d", size))
		}
	}
	check(connection.(*net.TCPConn).CloseWrite())
	if count, _ := connection.Read(make([]byte, 1)); count != 0 {
		check(fmt.Errorf("something behind the end"))
	}
}

func main() {
	address := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "server" {
		listener, err := net.Listen("tcp", address)
		check(err)
		for {
			connection, err := listener.Accept()
			check(err)
			go serve(connection)
		}
	}
	var all sync.WaitGroup
	for number := 0; number < 4; number++ {
		all.Add(1)
		go func() { defer all.Done(); talk(number, address) }()
	}
	all.Wait()
	fmt.Println("the same bytes came back")
}
