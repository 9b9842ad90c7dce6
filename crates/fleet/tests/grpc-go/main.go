// Stands before a shard and speaks grpc-go, protobuf-go and Go's TLS with whoever dials it, as BigFleet's shard does: the
// same limits, the same silence about keepalive, the same look at certificates. What is said is decoded, encoded again and
// handed on, both ways.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Largest message in either direction.
const message = 256 << 20

const session = "/bigfleet.v1alpha1.Shard/Session"

var (
	listen    = flag.String("listen", "127.0.0.1:0", "address to listen on")
	to        = flag.String("to", "", "address of the shard that stands behind")
	described = flag.String("described", "", "file with the FileDescriptorSet of the protocol")
	cert      = flag.String("tls-cert", "", "certificate; without it there is no TLS")
	key       = flag.String("tls-key", "", "its key")
	ca        = flag.String("tls-ca", "", "authorities of clients")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	method, err := readMethod(*described)
	if err != nil {
		return err
	}
	behind, err := grpc.NewClient(*to,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(message), grpc.MaxCallSendMsgSize(message)))
	if err != nil {
		return err
	}
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(message),
		grpc.MaxSendMsgSize(message),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			return relay(stream, behind, method)
		}),
	}
	if *cert != "" {
		config, err := readTLS()
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	log.Printf("listening address=%s", listener.Addr())
	return grpc.NewServer(options...).Serve(listener)
}

func readMethod(file string) (protoreflect.MethodDescriptor, error) {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(bytes, &set); err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	found, err := files.FindDescriptorByName("bigfleet.v1alpha1.Shard.Session")
	if err != nil {
		return nil, err
	}
	return found.(protoreflect.MethodDescriptor), nil
}

func readTLS() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(*ca)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(bytes) {
		return nil, fmt.Errorf("%s holds no certificate", *ca)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		MinVersion:   tls.VersionTLS13,
	}, nil
}

// relay hands on what is said, both ways, until one side ends.
func relay(stream grpc.ServerStream, behind *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
	if name, _ := grpc.MethodFromServerStream(stream); name != session {
		return status.Errorf(codes.Unimplemented, "there is no %s", name)
	}
	first := dynamicpb.NewMessage(method.Input())
	if err := stream.RecvMsg(first); err != nil {
		return err
	}
	if err := checkIdentity(stream.Context(), first); err != nil {
		return err
	}
	context, cancel := context.WithCancel(stream.Context())
	defer cancel()
	kind := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	onward, err := behind.NewStream(context, kind, session)
	if err != nil {
		return err
	}
	go func() {
		for heard := first; ; {
			if onward.SendMsg(heard) != nil {
				return
			}
			heard = dynamicpb.NewMessage(method.Input())
			if stream.RecvMsg(heard) != nil {
				// The shard ends it when it has heard the end; nobody waits for what it says of that.
				_ = onward.CloseSend()
				return
			}
		}
	}()
	for {
		said := dynamicpb.NewMessage(method.Output())
		if err := onward.RecvMsg(said); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.SendMsg(said); err != nil {
			return err
		}
	}
}

// checkIdentity refuses who is not the cluster that he says he is. Without TLS anybody is believed.
func checkIdentity(context context.Context, first *dynamicpb.Message) error {
	caller, _ := peer.FromContext(context)
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	fields := first.Descriptor().Fields()
	hello := first.Get(fields.ByName("hello")).Message()
	cluster := hello.Get(hello.Descriptor().Fields().ByName("cluster_id")).String()
	var names []string
	for _, uri := range info.State.VerifiedChains[0][0].URIs {
		if uri.Scheme == "bigfleet" {
			names = append(names, uri.String())
		}
	}
	if len(names) != 1 || names[0] != "bigfleet://cluster/"+cluster {
		return status.Errorf(codes.PermissionDenied, "the certificate is of %v, not of cluster %s", names, cluster)
	}
	return nil
}
