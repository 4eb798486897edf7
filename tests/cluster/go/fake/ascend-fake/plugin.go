package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	pollEvery  = 250 * time.Millisecond // how soon a change of the file is seen
	socketName = "glm5-fake-ascend.sock"
)

type pluginOptions struct {
	State, Sockets, InstallDir, HostTool string
}

type plugin struct {
	api.UnimplementedDevicePluginServer
	options pluginOptions
	ended   <-chan struct{}
}

// runPlugin serves one registration after another: a new one is needed when the kubelet restarts (it empties its
// folder) and when the file names another resource.
func runPlugin(options pluginOptions) error {
	if options.InstallDir != "" {
		if err := installSelf(filepath.Join(options.InstallDir, "npu-smi")); err != nil {
			return err
		}
		link := filepath.Join(options.InstallDir, "hccn_tool")
		if err := os.Symlink("npu-smi", link); err != nil && !os.IsExist(err) {
			return err
		}
	}
	for ; ; time.Sleep(pollEvery) {
		node, err := loadNode(options.State)
		if err != nil {
			log.Print(err)
			continue
		}
		if err := serve(options, node.Resource); err != nil {
			log.Print(err)
			time.Sleep(time.Second)
		}
	}
}

func serve(options pluginOptions, resource string) error {
	socket := filepath.Join(options.Sockets, socketName)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	server := grpc.NewServer()
	defer server.Stop()
	defer close(ended)
	api.RegisterDevicePluginServer(server, &plugin{options: options, ended: ended})
	go func() { _ = server.Serve(listener) }()
	if err := register(filepath.Join(options.Sockets, "kubelet.sock"), resource); err != nil {
		return fmt.Errorf("register %s: %w", resource, err)
	}
	log.Printf("registered %s", resource)
	for ; ; time.Sleep(pollEvery) {
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("the kubelet restarted: %w", err)
		}
		if node, err := loadNode(options.State); err == nil && node.Resource != resource {
			return nil
		}
	}
}

func register(socket, resource string) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socketName, ResourceName: resource}
	_, err = api.NewRegistrationClient(connection).Register(ctx, request)
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices at once and again whenever the file says something else.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	last := "none sent yet"
	for {
		if node, err := loadNode(p.options.State); err == nil { // a half-written file is read again at the next turn
			devices := pluginDevices(node)
			if state := fmt.Sprint(devices); state != last {
				if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
					return err
				}
				last = state
				log.Printf("%d devices sent", len(devices))
			}
		}
		select {
		case <-p.ended:
			return nil
		case <-stream.Context().Done():
			return nil
		case <-time.After(pollEvery):
		}
	}
}

func pluginDevices(node *Node) []*api.Device {
	devices := make([]*api.Device, 0, len(node.Devices))
	for _, device := range node.Devices {
		health := api.Unhealthy
		if device.Schedulable() {
			health = api.Healthy
		}
		devices = append(devices, &api.Device{ID: fmt.Sprintf("Ascend910-%d", device.Physical), Health: health})
	}
	return devices
}

// Allocate answers as Ascend's plugin does where the Ascend Docker Runtime is installed (environment only), and adds
// the read-only mounts that the runtime would make.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := make([]int, 0, len(container.DevicesIds))
		for _, name := range container.DevicesIds {
			id, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
			if err != nil {
				return nil, fmt.Errorf("device %s: %w", name, err)
			}
			ids = append(ids, id)
		}
		slices.Sort(ids)
		visible := strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
		folder := filepath.Dir(DefaultState)
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"ASCEND_VISIBLE_DEVICES": visible, "ASCEND_RUNTIME_OPTIONS": ""},
			Mounts: []*api.Mount{
				{HostPath: folder, ContainerPath: folder, ReadOnly: true}, // the folder: a replaced file is then seen
				{HostPath: p.options.HostTool, ContainerPath: "/usr/local/bin/npu-smi", ReadOnly: true},
			},
		})
	}
	return response, nil
}

// installSelf copies this program to the node; under the names npu-smi and hccn_tool it is the other tools.
func installSelf(target string) error {
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer source.Close()
	draft := target + ".draft"
	copied, err := os.OpenFile(draft, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(copied, source); err != nil {
		return err
	}
	if err := copied.Close(); err != nil {
		return err
	}
	return os.Rename(draft, target)
}
